CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid numeric(8, 2), type text NOT NULL, payload text);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
