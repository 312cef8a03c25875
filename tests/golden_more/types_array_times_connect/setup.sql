CREATE TABLE public.clocks (id int PRIMARY KEY, a time[], three time(3)[], none time(0)[], required time[] NOT NULL);
ALTER TABLE public.clocks REPLICA IDENTITY FULL;
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
