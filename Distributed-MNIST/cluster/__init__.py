"""What a distributed script needs around its scheme; in a copy, keep it as it is.

Module by module, a caller before what it calls:

    report         what a run prints, draws and writes           (scripts)
    protocol       how tasks start, go on and end together       (scripts)
    barrier        a step that is open for N gradients           (synchronous scripts)
    lobby          before a worker joins: who is there?          (protocol, barrier)
    serve          what a ps does                                (scripts, protocol)
    fingerprint    what all tasks must agree on                  (lobby, protocol)
    model          initialised, restored, or alive on the ps     (protocol)
    checkpoint     a saver that says what is wrong               (scripts, model)
    account        the books as a dict                           (scripts, protocol)
    rounds         pull, push, update; many rounds in a call     (scripts, barrier)
    unroll         ten rounds are two and their copies           (rounds)
    books          ps 0 numbers updates and keeps the books      (scripts)
    incarnation    what belongs to a start or a restore          (books, lobby, serve)
    rows           names and numbers of the books                (books, report)
    straggler      --slow_workers, an experiment                 (scripts)
    start          first call of a task: LOGDIR, log, signals    (scripts)
    flags          flag types, the parser, the data              (scripts)
    addresses      host lists and TF_CONFIG                      (flags, start)
    watch          waiting, and a sign of life                   (lobby, rounds, serve)
    ports          free ports; does a port answer?             (run.sh, watch)
    exits          one sentence and a status                     (everybody)
    tensorflow_v1  TensorFlow, quietly and when it is needed     (everybody)

A folder has the modules that its script needs, and no others.
"""
