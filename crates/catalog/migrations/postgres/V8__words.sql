-- The texts that attributes have, each once, and by the pieces of three letters that they have (docs/design/rows.md,
-- docs/decisions/2026-11-23-texts-are-found-by-three-letters.md).
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE TABLE word (
    sp BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    word TEXT COLLATE "C" NOT NULL
);
INSERT INTO word (sp, name, word) SELECT DISTINCT sp, name, word FROM attribute WHERE word IS NOT NULL;
CREATE INDEX word_by_name ON word (sp, name, word);
CREATE INDEX word_by_piece ON word USING gin (word gin_trgm_ops);

-- Two transactions may both add a text, since neither sees what the other has not committed. That does no harm, and waiting would. No text
-- is removed before its space is: a transaction that relies on it may not have committed yet.
CREATE FUNCTION attribute_words() RETURNS TRIGGER LANGUAGE plpgsql SET plan_cache_mode = 'force_custom_plan' AS $$
BEGIN
    INSERT INTO word (sp, name, word)
        SELECT DISTINCT c.sp, c.name, c.word FROM changed c WHERE c.word IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM word w WHERE w.sp = c.sp AND w.name = c.name AND w.word = c.word
        );
    RETURN NULL;
END $$;
CREATE TRIGGER attribute_word_added AFTER INSERT ON attribute
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION attribute_words();

-- The texts that a pattern matches, by their pieces and by nothing else: a plan that goes through all texts until it has found enough would
-- be taken for the cheaper one, and is where few or none match. The index gathers all that match before it tells of the first; where a sample
-- says that these are far more than are wanted, there is one row with an empty name.
CREATE FUNCTION words_like(of_space BIGINT, of_name TEXT, pattern TEXT, most BIGINT) RETURNS TABLE (name TEXT, word TEXT)
    LANGUAGE plpgsql STABLE SET plan_cache_mode = 'force_custom_plan' SET enable_indexscan = off SET enable_indexonlyscan = off AS $$
DECLARE
    texts REAL := (SELECT reltuples FROM pg_class WHERE oid = 'word'::regclass);
    seen BIGINT := 0;
    hits BIGINT := 0;
BEGIN
    IF texts > 100 * most THEN
        SELECT COUNT(*), COUNT(*) FILTER (WHERE w.word LIKE pattern) INTO seen, hits FROM word w TABLESAMPLE SYSTEM (50000 / texts);
    END IF;
    IF seen > 200 AND hits * 25 > seen THEN
        RETURN QUERY SELECT '', '';
    ELSE
        RETURN QUERY SELECT w.name, w.word FROM word w
            WHERE w.sp + 0 = of_space AND (of_name = '' OR w.name = of_name) AND w.word LIKE pattern LIMIT most;
    END IF;
END $$;
