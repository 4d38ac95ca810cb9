-- Sites of a fabric, spaces and stores of others, and what is on its way between them (docs/design/following.md).

CREATE TABLE peer (
    id UUID NOT NULL PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL,
    key BYTEA NOT NULL,
    old_key BYTEA,
    old_key_until BIGINT,
    key_change TEXT COLLATE "C",
    confirmed BIGINT NOT NULL,
    urls TEXT COLLATE "C" NOT NULL,
    dialable BIGINT NOT NULL,
    issuers TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    changed BIGINT NOT NULL,
    changed_by UUID NOT NULL
);

-- Keys that this site had before, whose tokens are still good (docs/design/trust.md).
CREATE TABLE retired_key (
    key BYTEA NOT NULL PRIMARY KEY,
    until BIGINT NOT NULL
);

CREATE TABLE invitation (
    hash BYTEA NOT NULL PRIMARY KEY,
    made_by TEXT COLLATE "C" NOT NULL,
    expires BIGINT NOT NULL,
    used_by UUID
);

ALTER TABLE space ADD COLUMN home UUID;
ALTER TABLE space ADD COLUMN behind TEXT COLLATE "C";

-- Attempts in a row that achieved nothing; null is none (docs/design/tasks.md).
ALTER TABLE task ADD COLUMN vain BIGINT;

ALTER TABLE store ADD COLUMN site UUID;
-- A name is unique at its site.
ALTER TABLE store DROP CONSTRAINT store_name_key;
CREATE UNIQUE INDEX store_own_name ON store (name) WHERE site IS NULL;

CREATE TABLE arrival (
    id UUID NOT NULL PRIMARY KEY,
    state TEXT COLLATE "C" NOT NULL,
    lease UUID NOT NULL,
    fence BIGINT NOT NULL,
    sp BIGINT NOT NULL,
    st BIGINT NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    token TEXT COLLATE "C" NOT NULL,
    identity TEXT COLLATE "C",
    version BIGINT,
    body TEXT COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX arrival_key ON arrival (st, key);
CREATE INDEX arrival_lease ON arrival (lease);

CREATE TABLE outbox (
    number BIGINT NOT NULL PRIMARY KEY,
    sp BIGINT NOT NULL,
    version BIGINT NOT NULL,
    st BIGINT NOT NULL,
    body TEXT COLLATE "C" NOT NULL
);
CREATE INDEX outbox_copy ON outbox (sp, version, st);

CREATE TABLE told (
    site UUID NOT NULL,
    id UUID NOT NULL,
    answer TEXT COLLATE "C" NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (site, id)
);
CREATE INDEX told_since ON told (since);
