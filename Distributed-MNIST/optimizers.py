"""Momentum and Adam on the ps, and how the learning rate falls. The script calls it.

One operation updates a variable, on its ps, under the variable's own lock. Adam
corrects its means with the number that ps 0 has given to the update.
"""

from cluster import flags
from cluster import tensorflow_v1 as tf


def add_flags(parser):
    """Adds the flags of the update."""
    add = parser.add_argument
    add("--optimizer", choices=("momentum", "adam"), default="momentum", help="rule")
    add("--momentum", type=flags.fraction, default=0.9, help="μ, or Adam's β₁")
    add("--decay_rate", type=flags.positive, default=0.5, help="d, factor of the decay")
    add("--decay_steps", type=flags.positive_int, default=400, help="until η is d η")
    add("--clip_norm", type=flags.not_negative, default=2, help="most of ‖g‖; 0: any")


def learning_rate(args, t):
    """Returns η_t := η d^(t / decay_steps), where t updates were made before."""
    return tf.train.exponential_decay(
        args.learning_rate, t, args.decay_steps, args.decay_rate
    )


def of(args, place):
    """Returns rule(i, w, g, t, rate): what moves piece i of the variables, on its ps.

    t counts updates from 1, `rate` is η_t. Slots lie beside their variables.
    """
    m = place.slots("momentum")

    def momentum(i, w, g, t, rate):
        # m ← μ m + g,  w ← w − η_t m   (Sutskever et al. 2013, equations 1 and 2)
        return tf.raw_ops.ResourceApplyMomentum(
            var=w.handle, accum=m[i].handle, lr=rate, grad=g, momentum=args.momentum,
            use_locking=True,  # or two updates at once may lose one
        )  # fmt: skip

    if args.optimizer == "momentum":
        return momentum
    v, beta = place.slots("square"), 0.999

    def adam(i, w, g, t, rate):
        # m ← β₁ m + (1−β₁) g,  v ← β₂ v + (1−β₂) g²   (Kingma, Ba 2015, Algorithm 1)
        # w ← w − η_t (m / (1−β₁^t)) / (√(v / (1−β₂^t)) + ε)
        powers = (tf.pow(b, tf.cast(t, tf.float32)) for b in (args.momentum, beta))
        betas = dict(zip(("beta1_power", "beta2_power"), powers, strict=True))
        return tf.raw_ops.ResourceApplyAdam(
            var=w.handle, m=m[i].handle, v=v[i].handle, lr=rate, grad=g,
            beta1=args.momentum, beta2=beta, epsilon=1e-8, use_locking=True, **betas,
        )  # fmt: skip

    return adam
