-- How many entries have which value of an attribute (docs/design/rows.md, docs/decisions/2026-11-23-values-are-tallied-by-triggers.md).
CREATE TABLE tally (
    sp INTEGER NOT NULL,
    name TEXT NOT NULL,
    type INTEGER NOT NULL,
    value TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (sp, name, type, value)
) STRICT, WITHOUT ROWID;
INSERT INTO tally (sp, name, type, value, n)
    SELECT sp, name, IIF(own, type, 0), IIF(own, value, ''), COUNT(*) FROM (
        SELECT DISTINCT sp, entry, name, type, value,
            type = 5 OR type = 3 AND length(value) <= 64 OR type = 1 AND length(value) <= 5 AS own FROM attribute
    ) GROUP BY 1, 2, 3, 4;
CREATE TRIGGER attribute_added AFTER INSERT ON attribute
WHEN NOT EXISTS (
    SELECT 1 FROM attribute a WHERE a.sp = NEW.sp AND a.entry = NEW.entry AND a.name = NEW.name
    AND (a.source <> NEW.source OR a.ord <> NEW.ord) AND a.type = NEW.type AND a.value = NEW.value
)
BEGIN
    INSERT INTO tally (sp, name, type, value, n)
    SELECT NEW.sp, NEW.name, IIF(own, NEW.type, 0), IIF(own, NEW.value, ''), 1 FROM (SELECT
        NEW.type = 5 OR NEW.type = 3 AND length(NEW.value) <= 64 OR NEW.type = 1 AND length(NEW.value) <= 5 AS own
    ) WHERE true
    ON CONFLICT (sp, name, type, value) DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER attribute_removed AFTER DELETE ON attribute
WHEN NOT EXISTS (
    SELECT 1 FROM attribute a WHERE a.sp = OLD.sp AND a.entry = OLD.entry AND a.name = OLD.name
    AND a.type = OLD.type AND a.value = OLD.value
)
BEGIN
    UPDATE tally SET n = n - 1 WHERE sp = OLD.sp AND name = OLD.name AND (type, value) = (
        SELECT IIF(own, OLD.type, 0), IIF(own, OLD.value, '') FROM (SELECT
            OLD.type = 5 OR OLD.type = 3 AND length(OLD.value) <= 64 OR OLD.type = 1 AND length(OLD.value) <= 5 AS own
        )
    );
    DELETE FROM tally WHERE sp = OLD.sp AND name = OLD.name AND type IN (0, OLD.type) AND value IN ('', OLD.value) AND n <= 0;
END;
