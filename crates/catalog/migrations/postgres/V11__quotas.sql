-- How many bytes a space may have and has (docs/design/rows.md, docs/decisions/2026-11-26-quotas-of-spaces.md).
ALTER TABLE space ADD COLUMN quota BIGINT;
-- One row for each shard, so that servers do not wait for each other; one of them may be less than nothing.
CREATE TABLE used (
    sp BIGINT NOT NULL,
    shard BIGINT NOT NULL,
    bytes NUMERIC NOT NULL,
    PRIMARY KEY (sp, shard)
) WITH (fillfactor = 50);
INSERT INTO used (sp, shard, bytes) SELECT sp, 0, SUM(size) FROM entry WHERE size > 0 GROUP BY sp;

CREATE FUNCTION entry_bytes() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO used AS u (sp, shard, bytes)
            SELECT sp, tally_shard(), SUM(size) FROM (
                SELECT sp, size::numeric FROM changed WHERE size > 0
                UNION ALL SELECT sp, -size::numeric FROM before WHERE size > 0
            ) AS c GROUP BY sp HAVING SUM(size) <> 0 ORDER BY sp
        ON CONFLICT (sp, shard) DO UPDATE SET bytes = u.bytes + excluded.bytes;
    ELSE
        INSERT INTO used AS u (sp, shard, bytes)
            SELECT sp, tally_shard(), CASE TG_OP WHEN 'INSERT' THEN SUM(size) ELSE -SUM(size) END
            FROM changed WHERE size > 0 GROUP BY sp ORDER BY sp
        ON CONFLICT (sp, shard) DO UPDATE SET bytes = u.bytes + excluded.bytes;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER entry_bytes_added AFTER INSERT ON entry
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION entry_bytes();
CREATE TRIGGER entry_bytes_removed AFTER DELETE ON entry
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION entry_bytes();
CREATE TRIGGER entry_bytes_changed AFTER UPDATE ON entry
    REFERENCING OLD TABLE AS before NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION entry_bytes();
