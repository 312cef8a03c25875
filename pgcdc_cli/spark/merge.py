"""The merge job, for spark-submit: merges the segments of a pgcdc directory into lake tables.

    spark-submit --packages io.delta:delta-spark_4.1_2.13:4.4.0 merge.py --input DIR --warehouse DIR

It uses nothing of pgcdc but the folder `pgcdc_merge` beside it, which is on the job's Python path.
"""

import sys

if __name__ == "__main__":
    from pgcdc_merge.main import main  # type: ignore[import-not-found]  # found beside this file, by Spark only

    sys.exit(main(sys.argv[1:]))
