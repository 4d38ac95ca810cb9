-- The texts that attributes have, each once, and by the pieces of three letters that they have (docs/design/rows.md,
-- docs/decisions/2026-11-23-texts-are-found-by-three-letters.md).
CREATE TABLE word (
    id INTEGER PRIMARY KEY,
    sp INTEGER NOT NULL,
    name TEXT NOT NULL,
    word TEXT NOT NULL
) STRICT;
INSERT INTO word (sp, name, word) SELECT DISTINCT sp, name, word FROM attribute WHERE word IS NOT NULL;
CREATE INDEX word_by_name ON word (sp, name, word);
CREATE VIRTUAL TABLE word_piece USING fts5 (
    word, content = 'word', content_rowid = 'id', tokenize = 'trigram case_sensitive 1', detail = 'none', columnsize = 0
);
INSERT INTO word_piece (word_piece) VALUES ('rebuild');
CREATE TRIGGER word_added AFTER INSERT ON word
BEGIN
    INSERT INTO word_piece (rowid, word) VALUES (NEW.id, NEW.word);
END;
CREATE TRIGGER word_removed AFTER DELETE ON word
BEGIN
    INSERT INTO word_piece (word_piece, rowid, word) VALUES ('delete', OLD.id, OLD.word);
END;
CREATE TRIGGER attribute_word_added AFTER INSERT ON attribute
WHEN NEW.word IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM word w WHERE w.sp = NEW.sp AND w.name = NEW.name AND w.word = NEW.word
)
BEGIN
    INSERT INTO word (sp, name, word) VALUES (NEW.sp, NEW.name, NEW.word);
END;
CREATE TRIGGER attribute_word_removed AFTER DELETE ON attribute
WHEN OLD.word IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM attribute a WHERE a.sp = OLD.sp AND a.name = OLD.name AND a.word = OLD.word
)
BEGIN
    DELETE FROM word WHERE sp = OLD.sp AND name = OLD.name AND word = OLD.word;
END;
