-- Entries by their own names, wherever they are (docs/decisions/2026-11-22-an-index-of-names.md).

CREATE INDEX entry_by_name ON entry (sp, name, id);
