"""What PostgreSQL's output plugin wal2json prints in its format version 2, made of pgoutput's messages."""
