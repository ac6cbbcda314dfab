"""What a distributed script needs around its scheme; in a copy, keep it as it is.

Module by module, a caller before what it calls:

    report         what a run prints, draws and writes           (scripts)
    protocol       how tasks start, go on and end together       (scripts)
    meeting        the same for workers without a ps             (scripts of peers)
    parting        how these end together                        (meeting)
    alike          the same weights on every worker              (meeting)
    barrier        a step that is open for N gradients           (synchronous scripts)
    clocks         nobody is s rounds ahead of the slowest       (scripts)
    compression    a vector in fewer bytes                       (scripts)
    lobby          before a worker joins: who is there?          (barrier, clocks, ..)
    serve          what a ps does                                (scripts, protocol)
    fingerprint    what all tasks must agree on                  (lobby, protocol)
    model          initialised, restored, or alive on the ps     (protocol)
    checkpoint     a saver that says what is wrong               (scripts, model)
    account        the books as a dict                           (scripts, protocol)
    lockstep       rounds that all peers make together           (scripts of peers)
    ring           what peers add up, around a ring              (scripts, meeting)
    rounds         pull, push, update; many rounds in a call     (scripts, barrier)
    unroll         ten rounds are two and their copies           (rounds)
    fragments      a vector in pieces that take turns            (DiLoCo's script)
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
