#!/bin/sh
# Prints the compressed manual page of a program, made from its --help: packaging/manual.sh PROGRAM VERSION DESCRIPTION. Needs help2man.
set -eu
page=$(help2man --no-info --no-discard-stderr --version-string="$2" --name="$3" "$1")
# CLI11's headings of groups of options.
printf '%s\n' "$page" | sed -e '/^\.PP$/{N;s/^\.PP\n\[Option Group: \(.*\)\]$/.SS "\1"/}' -e '/^\.IP$/{N;/\nOptions:$/d}' | gzip -9n
