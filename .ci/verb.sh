#!/bin/sh
# `make run|chat|serve|bench`: turn the settings that make exported as MAKE_* into options of `ggfw VERB`; whatever
# follows VERB (ARGS) goes last. An unset setting passes no option, so ggfw's own defaults hold.
set -eu
cd "$(dirname "$0")/.."
verb=$1
shift

sampling() { [ "$verb" != bench ]; }
if sampling; then
    [ -z "${MAKE_SKILLS_DIR:-}" ] || set -- --skills "$MAKE_SKILLS_DIR" "$@"
    [ -z "${MAKE_MAX_TOKENS:-}" ] || set -- --max-tokens "$MAKE_MAX_TOKENS" "$@"
    [ -z "${MAKE_SEED:-}" ] || set -- --seed "$MAKE_SEED" "$@"
    [ -z "${MAKE_REPEAT_PENALTY:-}" ] || set -- --repeat-penalty "$MAKE_REPEAT_PENALTY" "$@"
    [ -z "${MAKE_MIN_P:-}" ] || set -- --min-p "$MAKE_MIN_P" "$@"
    [ -z "${MAKE_TOP_K:-}" ] || set -- --top-k "$MAKE_TOP_K" "$@"
    [ -z "${MAKE_TOP_P:-}" ] || set -- --top-p "$MAKE_TOP_P" "$@"
    [ -z "${MAKE_TEMP:-}" ] || set -- --temp "$MAKE_TEMP" "$@"
fi
[ -z "${MAKE_THREADS:-}" ] || set -- --threads "$MAKE_THREADS" "$@"
ggfw=.venv/bin/ggfw
[ "$verb" = run ] || [ -z "${MAKE_PROMPT:-}" ] || echo "make $verb takes no PROMPT: it is for make run" >&2

if [ "$verb" = run ]; then
    prompt=${MAKE_PROMPT:-Name three rivers in Europe.}
    if [ -n "${MAKE_MODEL:-}" ]; then
        exec $ggfw run "$MAKE_MODEL" "$prompt" "$@" </dev/null
    fi
    # Without a model the prompt comes through a pipe: as an argument, one word could be taken for a model's name.
    printf '%s' "$prompt" | $ggfw run - "$@"
else
    [ -z "${MAKE_MODEL:-}" ] || set -- "$MAKE_MODEL" "$@"
    exec $ggfw "$verb" "$@"
fi
