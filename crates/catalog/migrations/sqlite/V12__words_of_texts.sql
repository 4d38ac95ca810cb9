-- PostgreSQL has an index of words (docs/decisions/2026-11-26-words-have-an-index-in-postgresql.md); here the pieces of three letters find them.
SELECT 1;
