CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text, type text NOT NULL, payload jsonb, version int, other int DEFAULT 7);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
