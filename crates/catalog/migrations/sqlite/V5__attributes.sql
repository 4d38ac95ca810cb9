-- What objects and collections are about (docs/design/rows.md, docs/decisions/2026-11-22-attributes-in-one-table.md).
CREATE TABLE attribute (
    sp INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    name TEXT NOT NULL,
    source INTEGER NOT NULL,
    ord INTEGER NOT NULL,
    type INTEGER NOT NULL,
    number INTEGER,
    word TEXT,
    value TEXT NOT NULL,
    PRIMARY KEY (sp, entry, name, source, ord)
) STRICT, WITHOUT ROWID;
CREATE INDEX attribute_by_number ON attribute (sp, name, number, entry, type);
CREATE INDEX attribute_by_word ON attribute (sp, name, word, entry);
