-- In a new database, before anything is known of its tables, the index of words by names was taken for the one that leads to the rows of
-- an entry, and all rows of a name were gone through for each. Now only the primary key can be taken.
CREATE OR REPLACE FUNCTION attribute_changed() RETURNS TRIGGER LANGUAGE plpgsql SET plan_cache_mode = 'force_custom_plan' AS $$
BEGIN
    INSERT INTO tally AS t (sp, name, type, value, shard, n)
        SELECT sp, name, type, value, tally_shard(), CASE TG_OP WHEN 'INSERT' THEN COUNT(*) ELSE -COUNT(*) END FROM (
            SELECT sp, name, CASE WHEN own THEN type ELSE 0 END AS type, CASE WHEN own THEN value ELSE '' END AS value FROM (
                SELECT c.sp, c.name, c.type, c.value, tally_has(c.type, c.value) AS own FROM changed c
                GROUP BY c.sp, c.entry, c.name, c.type, c.value HAVING (
                    SELECT COUNT(*) FROM attribute a WHERE a.sp = c.sp AND a.entry = c.entry AND a.name || '' = c.name
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
