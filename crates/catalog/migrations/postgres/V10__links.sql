-- Where symbolic links lead, which are entries of the kind 3 (docs/decisions/2026-11-24-links-are-entries.md).
ALTER TABLE entry ADD COLUMN target TEXT;
