CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb);
CREATE TABLE outbox2 (id bigint PRIMARY KEY, aggregatetype text, aggregateid bigint, type text, payload text, tenant text, at timestamp, n int DEFAULT 5, version int, part int);
ALTER TABLE outbox2 REPLICA IDENTITY FULL;
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
