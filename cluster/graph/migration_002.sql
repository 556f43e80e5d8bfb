-- Version 2. What was answered to requests that have one effect however often they are sent.

CREATE TABLE receipts (
    account TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    answer TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (account, key)
);
CREATE INDEX receipts_by_expiry ON receipts (expires_at);
