#!/bin/sh
# Builds the site of the manual from the tree: docs/site.sh [FOLDER]. It lies in FOLDER/html (build/site/html), and index.html there opens
# without a server. A broken link fails the build. `mike` can keep a copy for each version of the library.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-build/site}
tools/setup.sh site
build/site-python/bin/python -B docs/site/pages.py "$folder"
build/site-python/bin/zensical build --strict --config-file "$folder/mkdocs.yml"
