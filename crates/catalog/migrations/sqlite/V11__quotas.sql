-- How many bytes a space may have and has (docs/design/rows.md, docs/decisions/2026-11-26-quotas-of-spaces.md).
-- The sum has two parts, since one of integers that is too large for an integer is an error.
ALTER TABLE space ADD COLUMN quota INTEGER;
-- ANY: what does not fit an integer any more goes on as a float.
CREATE TABLE used (
    sp INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    bytes ANY NOT NULL,
    PRIMARY KEY (sp, shard)
) STRICT, WITHOUT ROWID;
INSERT INTO used (sp, shard, bytes)
    SELECT sp, 0, SUM(size >> 20) * 1048576 + SUM(size & 1048575) FROM entry WHERE size > 0 GROUP BY sp;
CREATE TRIGGER entry_bytes_added AFTER INSERT ON entry WHEN NEW.size > 0
BEGIN
    INSERT INTO used (sp, shard, bytes) VALUES (NEW.sp, 0, NEW.size)
    ON CONFLICT (sp, shard) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER entry_bytes_removed AFTER DELETE ON entry WHEN OLD.size > 0
BEGIN
    UPDATE used SET bytes = bytes - OLD.size WHERE sp = OLD.sp;
END;
CREATE TRIGGER entry_bytes_changed AFTER UPDATE OF size ON entry WHEN NEW.size IS NOT OLD.size
BEGIN
    INSERT INTO used (sp, shard, bytes) VALUES (NEW.sp, 0, IFNULL(NEW.size, 0) - IFNULL(OLD.size, 0))
    ON CONFLICT (sp, shard) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
