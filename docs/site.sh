#!/bin/sh
# Builds the site of the manual from the tree: docs/site.sh [FOLDER]. It lies in FOLDER/html (build/site/html). A broken link fails the build.
# It has pages with the --help of the programs that build/release has (tools/setup.sh build release).
# The pages open from the disk; the search needs a server: python3 -m http.server -b 127.0.0.1 -d build/site/html
#
# For versions, put each build into a folder of its name, and beside the folders a file versions.json as `mike` writes it:
# [{"version": "1.0.0", "title": "1.0.0", "aliases": ["latest"]}]. The pages then have a menu of the versions.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-build/site}
tools/setup.sh site
build/site-python/bin/python -B docs/site/pages.py "$folder"
build/site-python/bin/zensical build --strict --config-file "$folder/mkdocs.yml"
