-- Which content lost its name, so that what took its key since is not deleted
-- (docs/decisions/2026-11-27-garbage-is-a-generation.md).
ALTER TABLE garbage ADD COLUMN generation TEXT COLLATE "C";
