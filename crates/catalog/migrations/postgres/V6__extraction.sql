-- How attributes are taken out of the bytes of objects, and how far that is (docs/design/rows.md).
ALTER TABLE space ADD COLUMN extraction TEXT;
CREATE TABLE extraction (
    sp BIGINT NOT NULL PRIMARY KEY,
    term BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    scan BIGINT,
    extractor BIGINT NOT NULL
);
