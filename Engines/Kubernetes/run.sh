#!/usr/bin/env bash
# Runs an example on the cluster that kubectl is pointed at: bash run.sh [EXAMPLE] [OPTION ...]
# Writes the files of the run, checks them, applies them, follows the chief, deletes them.
# From the environment: NUM_PS, NUM_WORKERS, TIMEOUT, PYTHON, KIND (tfjob or jobs), IMAGE
# (see Dockerfile), NAMESPACE, NAME, and DRY_RUN=1, which prints the checked files and
# needs no cluster.
ENGINE=Kubernetes
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
OPEN_PORTS=1 # nothing is served here
# shellcheck source=Engines/common.sh
source "$HERE/../common.sh"
: "${KIND:=tfjob}" "${IMAGE:=guide:1}" "${NAMESPACE:=default}" "${DRY_RUN:=}"

needs() {
  [ -z "$DRY_RUN" ] || return 0
  have kubectl "install it and point it at a cluster (DRY_RUN=1 prints the files without one)"
  # Only here: what else is wrong must not depend on a cluster that answers.
  kubectl version >/dev/null 2>&1 ||
    stop 3 "$ENGINE needs a cluster that answers kubectl: install one, or name it in KUBECONFIG"
}

version() {
  kubectl version 2>/dev/null | tr '\n' ' '
}

written() { # prints the files of the run
  local name=${NAME:-$(echo "$EXAMPLE" | tr '[:upper:]' '[:lower:]' | cut -c 1-50)}
  "$ENGINE_PYTHON" "$HERE/generate.py" "$EXAMPLE" --kind "$KIND" --ps "$NUM_PS" \
    --workers "$NUM_WORKERS" --image "$IMAGE" --namespace "$NAMESPACE" --name "$name" \
    -- ${OPTIONS[@]+"${OPTIONS[@]}"}
}

alone() { # nothing is started here, so no network of its own: the place of a dry run
  local text
  text=$(written)
  echo "$text" | "$ENGINE_PYTHON" "$HERE/validate.py" -
  if [ -n "$DRY_RUN" ]; then
    echo "$text"
    exit
  fi
}

kube() {
  kubectl --namespace "$NAMESPACE" "$@"
}

# shellcheck disable=SC2329 # common.sh calls it
finish() { # deletes all of the run but its volume, which has the result
  [ ! -e "$SCRATCH/run.yaml" ] || kube delete --ignore-not-found \
    "$KIND,networkpolicies,services" --selector "app.kubernetes.io/instance=$run" >&2
}

rehearse() {
  local pod phase status
  written >"$SCRATCH/run.yaml"
  run=${NAME:-$(echo "$EXAMPLE" | tr '[:upper:]' '[:lower:]' | cut -c 1-50)}
  kube apply --filename "$SCRATCH/run.yaml"
  kube get pods --selector "app.kubernetes.io/instance=$run" --watch &
  while [ "$SECONDS" -lt "$TIMEOUT" ]; do
    pod=$(kube get pods --selector "app.kubernetes.io/instance=$run" --output name |
      sed -n "/$run-chief-0/{p;q;}")
    phase=$([ -z "$pod" ] || kube get "$pod" --output jsonpath='{.status.phase}')
    case $phase in
      Succeeded | Failed)
        kube logs "$pod" | tee "$LOGDIR/chief.log"
        status=$(kube get "$pod" --output \
          jsonpath='{.status.containerStatuses[0].state.terminated.exitCode}')
        # From 128 on the pod comes again; the result itself is on the chief's volume.
        [ "${status:-1}" -ge 128 ] || exit "${status:-1}"
        ;;
    esac
    sleep 1
  done
  reason="no end after TIMEOUT=$TIMEOUT s"
  exit 124
}

engine "$@"
