# Completion of entrain-run, entrain-perf and entrain-train in bash, from what their --help prints.
_entrain() {
  local i words
  for ((i = 1; i < COMP_CWORD; i++)); do
    # What follows -- is a command of its own.
    [[ ${COMP_WORDS[i]} != -- ]] || { _command_offset $((i + 1)); return; }
  done
  if [[ $3 == --* ]]; then
    # The choices of an option: "--method TEXT:{ddp,edit,...}=edit".
    words=$(LC_ALL=C "$1" --help 2>&1 | sed -nE "s/^ *(-[^ ]*,)?$3[, ][^{]*\{([a-z0-9_,-]+)\}.*/\2/p" | tr , ' ')
  elif [[ ${1##*/} == entrain-perf && $COMP_CWORD -eq 1 && $2 != -* ]]; then
    # "COLLECTIVE: all_reduce, ..., or send_recv (...".
    words=$(LC_ALL=C "$1" --help 2>&1 | sed -n '/^COLLECTIVE: /,/(/{s/^COLLECTIVE: //;s/ or / /;s/(.*//;s/,/ /g;p}')
  fi
  if [[ -n $words ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$2")
  else
    _longopt "$@"
  fi
}
complete -F _entrain entrain-run entrain-perf entrain-train
