"""dist_checks says which parallelism axis broke a training job, before the job is scaled up."""
