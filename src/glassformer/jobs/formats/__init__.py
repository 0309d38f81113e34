"""What rows look like: ours, and OpenAI's batch files; and files of rows that are no lines: Parquet."""
