#!/usr/bin/env bash
# Runs an example on the cluster that kubectl is pointed at: bash run.sh [EXAMPLE] [OPTION ...]
# Writes the files of the run, checks them, applies them, follows the chief, deletes them.
# From the environment: NUM_PS, NUM_WORKERS, TIMEOUT, PYTHON, KIND (tfjob or jobs), IMAGE
# (see Dockerfile), NAMESPACE, NAME (of the run; a new one is a fresh run, with a volume of
# its own), RETRIES (30: how often in a row kubectl may fail), and DRY_RUN=1, which prints
# the checked files and needs no cluster.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh run.sh
set +o posix
ENGINE=Kubernetes
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
OPEN_PORTS=1 # nothing is served here
# shellcheck source=Engines/common.sh
source "$HERE/../common.sh"
: "${KIND:=tfjob}" "${IMAGE:=guide:1}" "${NAMESPACE:=default}" "${DRY_RUN:=}"
number RETRIES "${RETRIES:=30}" 0

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
  "$ENGINE_PYTHON" "$HERE/generate.py" "$EXAMPLE" --kind "$KIND" --ps "$NUM_PS" \
    --workers "$NUM_WORKERS" --image "$IMAGE" --namespace "$NAMESPACE" --name "$(named)" \
    -- ${OPTIONS[@]+"${OPTIONS[@]}"}
}

named() { # prints the name of the run
  echo "${NAME:-$(echo "$EXAMPLE" | tr '[:upper:]' '[:lower:]' | cut -c 1-50)}"
}

alone() { # nothing is started here, so no network of its own: the place of a dry run
  local text
  text=$(written)
  "$ENGINE_PYTHON" "$HERE/validate.py" - <<<"$text"
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

chief() { # prints the newest of the chief's pods: uid, name, phase, exit status
  # In one question, because the pod may be replaced between two. The dead pods of a Job
  # stay, so there may be several; the list is in the order of time. sed and tail read to
  # the end: a reader that quits early ends kubectl with SIGPIPE.
  kube get pods --selector "app.kubernetes.io/instance=$run" \
    --sort-by .metadata.creationTimestamp --output jsonpath="{range .items[*]}\
{.metadata.uid} {.metadata.name} {.status.phase} \
{.status.containerStatuses[?(@.name=='tensorflow')].state.terminated.exitCode}{'\n'}{end}" |
    sed -n "/^[^ ]* $run-chief-0[ -]/p" | tail -n 1
}

verdict() { # prints "True" and why, if the job has failed for good
  local condition="{.status.conditions[?(@.type=='Failed')]"
  kube get "$job" --output jsonpath="$condition.status} $condition.message}"
}

rehearse() {
  local job found said uid pod phase status over why shown='' failures=0
  run=$(named)
  job=tfjob/$run
  [ "$KIND" != jobs ] || job=job/$run-chief
  written >"$SCRATCH/run.yaml"
  : >"$LOGDIR/chief.log"
  kube apply --filename "$SCRATCH/run.yaml"
  launch kubectl --namespace "$NAMESPACE" get pods \
    --selector "app.kubernetes.io/instance=$run" --watch
  while [ "$SECONDS" -lt "$TIMEOUT" ]; do
    # A cluster that does not answer for a moment is no reason to delete the run.
    if ! { found=$(chief) && said=$(verdict); }; then
      failures=$((failures + 1))
      [ "$failures" -le "$RETRIES" ] || stop 1 "kubectl has failed $failures times in a row"
      sleep 1
      continue
    fi
    failures=0
    read -r uid pod phase status <<<"$found"
    read -r over why <<<"$said"
    case $phase in
      Succeeded | Failed)
        if [ "$uid" != "$shown" ]; then
          shown=$uid
          # A pod that is being replaced may be gone by now, and its log with it.
          kube logs "$pod" | tee -a "$LOGDIR/chief.log" || true
        fi
        [ "$phase" = Failed ] || exit 0
        # From 128 on, or without a status because its machine is lost, another pod comes.
        [ "${status:-128}" -ge 128 ] || exit "$status"
        ;;
    esac
    if [ "$over" = True ]; then
      reason="$job has failed: $why"
      exit "${status:-1}"
    fi
    sleep 1
  done
  reason="no end after TIMEOUT=$TIMEOUT s"
  exit 124
}

engine "$@"
