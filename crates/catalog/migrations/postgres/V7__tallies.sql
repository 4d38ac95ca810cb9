-- How many entries have which value of an attribute, and how many there are (docs/design/rows.md,
-- docs/decisions/2026-11-23-values-are-tallied-by-triggers.md). The number of a value is the sum of its rows.
CREATE TABLE tally (
    sp BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    type BIGINT NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    shard BIGINT NOT NULL DEFAULT 0,
    n BIGINT NOT NULL,
    PRIMARY KEY (sp, name, type, value, shard)
) WITH (fillfactor = 50);
CREATE FUNCTION tally_has(type BIGINT, value TEXT) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE
    RETURN type = 5 OR type = 3 AND length(value) <= 64 OR type = 1 AND length(value) <= 5;
-- Connections change rows of their own, since one that changes another's waits until that one has committed.
CREATE FUNCTION tally_shard() RETURNS BIGINT LANGUAGE sql STABLE
    RETURN pg_backend_pid() % 64;
INSERT INTO tally (sp, name, type, value, n)
    SELECT sp, name, type, value, COUNT(*) FROM (
        SELECT sp, name, CASE WHEN own THEN type ELSE 0 END AS type, CASE WHEN own THEN value ELSE '' END AS value FROM (
            SELECT DISTINCT sp, entry, name, type, value, tally_has(type, value) AS own FROM attribute
        ) AS a
    ) AS t GROUP BY sp, name, type, value;
INSERT INTO tally (sp, name, type, value, n)
    SELECT sp, '', kind, '', COUNT(*) FROM entry WHERE id > 1 GROUP BY sp, kind;

-- A value counts for an entry when its first row comes, and no more when its last one goes. Planned anew each time: a plan that was made
-- while there were few rows goes through an index of names to the end.
CREATE FUNCTION attribute_changed() RETURNS TRIGGER LANGUAGE plpgsql SET plan_cache_mode = 'force_custom_plan' AS $$
BEGIN
    INSERT INTO tally AS t (sp, name, type, value, shard, n)
        SELECT sp, name, type, value, tally_shard(), CASE TG_OP WHEN 'INSERT' THEN COUNT(*) ELSE -COUNT(*) END FROM (
            SELECT sp, name, CASE WHEN own THEN type ELSE 0 END AS type, CASE WHEN own THEN value ELSE '' END AS value FROM (
                SELECT c.sp, c.name, c.type, c.value, tally_has(c.type, c.value) AS own FROM changed c
                GROUP BY c.sp, c.entry, c.name, c.type, c.value HAVING (
                    SELECT COUNT(*) FROM attribute a WHERE a.sp = c.sp AND a.entry = c.entry AND a.name = c.name
                    AND a.type = c.type AND a.value = c.value
                ) = CASE TG_OP WHEN 'INSERT' THEN COUNT(*) ELSE 0 END
            ) AS a
        ) AS f GROUP BY sp, name, type, value ORDER BY sp, name, type, value
    ON CONFLICT (sp, name, type, value, shard) DO UPDATE SET n = t.n + excluded.n;
    IF TG_OP = 'DELETE' THEN
        DELETE FROM tally t USING (
            SELECT DISTINCT c.sp, c.name, CASE WHEN own THEN c.type ELSE 0 END AS type, CASE WHEN own THEN c.value ELSE '' END AS value
            FROM (SELECT sp, name, type, value, tally_has(type, value) AS own FROM changed) AS c
        ) AS d WHERE t.sp = d.sp AND t.name = d.name AND t.type = d.type AND t.value = d.value AND t.shard = tally_shard() AND t.n = 0;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER attribute_added AFTER INSERT ON attribute
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION attribute_changed();
CREATE TRIGGER attribute_removed AFTER DELETE ON attribute
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION attribute_changed();

CREATE FUNCTION entry_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tally AS t (sp, name, type, value, shard, n)
        SELECT sp, '', kind, '', tally_shard(), CASE TG_OP WHEN 'INSERT' THEN COUNT(*) ELSE -COUNT(*) END
        FROM changed WHERE id > 1 GROUP BY sp, kind ORDER BY sp, kind
    ON CONFLICT (sp, name, type, value, shard) DO UPDATE SET n = t.n + excluded.n;
    RETURN NULL;
END $$;
CREATE TRIGGER entry_added AFTER INSERT ON entry
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION entry_changed();
CREATE TRIGGER entry_removed AFTER DELETE ON entry
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION entry_changed();
