-- setup
CREATE TYPE pair AS (a int, b int);
CREATE TABLE unread (p tsquery, b box);
ALTER TABLE unread REPLICA IDENTITY FULL;
CREATE TABLE composed (c pair, b box);
ALTER TABLE composed REPLICA IDENTITY FULL;
CREATE TABLE keyed (c pair PRIMARY KEY, b box);
CREATE TABLE keyed_full (c pair PRIMARY KEY, b box);
ALTER TABLE keyed_full REPLICA IDENTITY FULL;
CREATE TABLE hidden (a int, b text);
ALTER TABLE hidden REPLICA IDENTITY FULL;
CREATE TABLE hidden_key (k int PRIMARY KEY, b text);
ALTER TABLE hidden_key REPLICA IDENTITY FULL;
CREATE TABLE one (k int PRIMARY KEY);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
