-- How attributes are taken out of the bytes of objects, and how far that is (docs/design/rows.md).
ALTER TABLE space ADD COLUMN extraction TEXT;
CREATE TABLE extraction (
    sp INTEGER NOT NULL PRIMARY KEY,
    term INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    scan INTEGER,
    extractor INTEGER NOT NULL
) STRICT;
