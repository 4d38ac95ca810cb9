-- Texts by the words in them, which stand between spaces (docs/decisions/2026-11-26-words-have-an-index-in-postgresql.md).
CREATE INDEX word_by_part ON word USING gin (string_to_array(word, ' ')) WITH (gin_pending_list_limit = 256);

-- Plans are made for what is known of the names of attributes: a new one is to be known before it is a tenth of all.
ALTER TABLE attribute SET (autovacuum_analyze_scale_factor = 0.02);

-- Places of some hundred texts, in pages that lie as far apart as can be. TABLESAMPLE counts through all pages.
CREATE FUNCTION words_sampled() RETURNS TID[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY(
        SELECT format('(%s,%s)', page, place)::tid
        FROM pg_class c, generate_series(0, c.relpages - 1, c.relpages / 100 + 1) AS page, generate_series(1, 2) AS place
        WHERE c.oid = 'word'::regclass
    )
$$;

-- As before, but for the sample.
CREATE OR REPLACE FUNCTION words_like(of_space BIGINT, of_name TEXT, pattern TEXT, most BIGINT) RETURNS TABLE (name TEXT, word TEXT)
    LANGUAGE plpgsql STABLE SET plan_cache_mode = 'force_custom_plan' SET enable_indexscan = off SET enable_indexonlyscan = off AS $$
DECLARE
    places TID[];
    seen BIGINT := 0;
    hits BIGINT := 0;
BEGIN
    IF (SELECT reltuples FROM pg_class WHERE oid = 'word'::regclass) > 100 * most THEN
        -- Once: the planner would call the function, too.
        places := words_sampled();
        SELECT COUNT(*), COUNT(*) FILTER (WHERE w.word LIKE pattern) INTO seen, hits
            FROM word w WHERE w.ctid = ANY (places);
    END IF;
    IF seen > 60 AND hits * 25 > seen THEN
        RETURN QUERY SELECT '', '';
    ELSE
        RETURN QUERY SELECT w.name, w.word FROM word w
            WHERE w.sp + 0 = of_space AND (of_name = '' OR w.name = of_name) AND w.word LIKE pattern LIMIT most;
    END IF;
END $$;

-- The texts that have all of some words, likewise.
CREATE FUNCTION words_with(of_space BIGINT, of_name TEXT, parts TEXT[], most BIGINT) RETURNS TABLE (name TEXT, word TEXT)
    LANGUAGE plpgsql STABLE SET plan_cache_mode = 'force_custom_plan' SET enable_indexscan = off SET enable_indexonlyscan = off AS $$
DECLARE
    places TID[];
    seen BIGINT := 0;
    hits BIGINT := 0;
BEGIN
    IF (SELECT reltuples FROM pg_class WHERE oid = 'word'::regclass) > 100 * most THEN
        -- Once: the planner would call the function, too.
        places := words_sampled();
        SELECT COUNT(*), COUNT(*) FILTER (WHERE string_to_array(w.word, ' ') @> parts) INTO seen, hits
            FROM word w WHERE w.ctid = ANY (places);
    END IF;
    IF seen > 60 AND hits * 25 > seen THEN
        RETURN QUERY SELECT '', '';
    ELSE
        RETURN QUERY SELECT w.name, w.word FROM word w
            WHERE w.sp + 0 = of_space AND w.name = of_name AND string_to_array(w.word, ' ') @> parts LIMIT most;
    END IF;
END $$;
