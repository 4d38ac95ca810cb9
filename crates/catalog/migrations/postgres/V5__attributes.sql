-- What objects and collections are about (docs/design/rows.md, docs/decisions/2026-11-22-attributes-in-one-table.md).
CREATE TABLE attribute (
    sp BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    source BIGINT NOT NULL,
    ord BIGINT NOT NULL,
    type BIGINT NOT NULL,
    number BIGINT,
    word TEXT COLLATE "C",
    value TEXT NOT NULL,
    PRIMARY KEY (sp, entry, name, source, ord)
);
CREATE INDEX attribute_by_number ON attribute (sp, name, number, entry, type);
CREATE INDEX attribute_by_word ON attribute (sp, name, word, entry);
