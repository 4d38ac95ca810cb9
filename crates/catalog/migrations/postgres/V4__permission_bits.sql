-- The permission bits that its owner gave an object (docs/design/rows.md).
ALTER TABLE entry ADD COLUMN mode BIGINT;
