-- Texts by the words in them, which stand between spaces (docs/decisions/2026-11-26-words-have-an-index-in-postgresql.md).
CREATE INDEX word_by_part ON word USING gin (string_to_array(word, ' ')) WITH (gin_pending_list_limit = 256);

-- Plans are made for what is known of the names of attributes: a new one is to be known before it is a tenth of all.
ALTER TABLE attribute SET (autovacuum_analyze_scale_factor = 0.02);

-- Tells whether far more texts than are wanted match a pattern, or have all of some words, by a sample of some hundred: an index gathers all that
-- match before it tells of the first. They are in pages that lie as far apart as can be; TABLESAMPLE counts through all pages.
CREATE FUNCTION words_are_common(pattern TEXT, parts TEXT[], most BIGINT) RETURNS BOOLEAN
    LANGUAGE plpgsql STABLE SET plan_cache_mode = 'force_custom_plan' AS $$
DECLARE
    texts REAL;
    pages BIGINT;
    places TID[];
    seen BIGINT;
    hits BIGINT;
BEGIN
    SELECT reltuples, relpages INTO texts, pages FROM pg_class WHERE oid = 'word'::regclass;
    IF texts <= 100 * most THEN
        RETURN FALSE;
    END IF;
    places := ARRAY(
        SELECT format('(%s,%s)', page, place)::tid
        FROM generate_series(0, pages - 1, pages / 100 + 1) AS page, generate_series(1, 2) AS place
    );
    SELECT COUNT(*), COUNT(*) FILTER (WHERE CASE WHEN parts IS NULL THEN w.word LIKE pattern ELSE string_to_array(w.word, ' ') @> parts END)
        INTO seen, hits FROM word w WHERE w.ctid = ANY (places);
    RETURN seen > 60 AND hits * 25 > seen;
END $$;

-- As before, but for the sample.
CREATE OR REPLACE FUNCTION words_like(of_space BIGINT, of_name TEXT, pattern TEXT, most BIGINT) RETURNS TABLE (name TEXT, word TEXT)
    LANGUAGE plpgsql STABLE SET plan_cache_mode = 'force_custom_plan' SET enable_indexscan = off SET enable_indexonlyscan = off AS $$
BEGIN
    IF words_are_common(pattern, NULL, most) THEN
        RETURN QUERY SELECT '', '';
    ELSE
        RETURN QUERY SELECT w.name, w.word FROM word w
            WHERE w.sp + 0 = of_space AND (of_name = '' OR w.name = of_name) AND w.word LIKE pattern LIMIT most;
    END IF;
END $$;

-- The texts of an attribute that have all of some words, likewise.
CREATE FUNCTION words_with(of_space BIGINT, of_name TEXT, parts TEXT[], most BIGINT) RETURNS TABLE (name TEXT, word TEXT)
    LANGUAGE plpgsql STABLE SET plan_cache_mode = 'force_custom_plan' SET enable_indexscan = off SET enable_indexonlyscan = off AS $$
BEGIN
    IF words_are_common(NULL, parts, most) THEN
        RETURN QUERY SELECT '', '';
    ELSE
        RETURN QUERY SELECT w.name, w.word FROM word w
            WHERE w.sp + 0 = of_space AND w.name = of_name AND string_to_array(w.word, ' ') @> parts LIMIT most;
    END IF;
END $$;
