#compdef entrain-run entrain-perf entrain-train
# zsh reads the options from what --help prints.
_gnu_generic
