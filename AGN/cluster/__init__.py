"""What a distributed script needs around its scheme; what one keeps when one copies.

Module by module, a caller before what it calls:

    report         what a run prints, draws and writes           (scripts)
    protocol       how tasks start and end together              (scripts)
    barrier        a step that is open for N gradients           (synchronous scripts)
    rounds         pull, push, update; many rounds in a call     (scripts)
    books          ps 0 numbers updates and keeps the books      (scripts)
    straggler      --slow_workers, an experiment                 (scripts)
    start          first call of a task: LOGDIR, log, signals    (scripts)
    flags          flag types, the parser, the data              (scripts)
    addresses      host lists and TF_CONFIG                      (flags)
    ports          free ports; does a port answer?               (run.sh, addresses)
    exits          one sentence and a status                     (everybody)
    tensorflow_v1  TensorFlow, quietly and when it is needed     (everybody)

A folder has the modules that its script needs, and no others.
"""
