-- setup
CREATE TABLE moments_timestamp (k int PRIMARY KEY, v timestamp[]);
CREATE TABLE moments_timestamp3 (k int PRIMARY KEY, v timestamp(3)[]);
CREATE TABLE moments_timestamptz (k int PRIMARY KEY, v timestamptz[]);
CREATE TABLE moments_timestamptz3 (k int PRIMARY KEY, v timestamptz(3)[]);CREATE TABLE moments_date (k int PRIMARY KEY, v date[]); CREATE TABLE moments_time (k int PRIMARY KEY, v time[]);CREATE TABLE moments_timetz (k int PRIMARY KEY, v timetz[]);CREATE TABLE tma (k int PRIMARY KEY, d date[], t time[], t3 time(3)[], t6 time(6)[], tz timetz[], tz2 timetz(2)[], ts timestamp[], ts0 timestamp(0)[], ts3 timestamp(3)[], ts5 timestamp(5)[], tsz timestamptz[], tsz0 timestamptz(0)[], tsz3 timestamptz(3)[], iv interval[]);
ALTER TABLE tma REPLICA IDENTITY FULL;
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
