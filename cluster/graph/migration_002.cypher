// Version 2. What was answered to requests that have one effect however often they are sent.

CREATE CONSTRAINT receipt_key IF NOT EXISTS FOR (r:Receipt) REQUIRE (r.account, r.key) IS UNIQUE;
CREATE INDEX receipt_expiry IF NOT EXISTS FOR (r:Receipt) ON (r.expires_at);
