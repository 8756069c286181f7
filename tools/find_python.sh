#!/bin/sh
# Prints the first interpreter of the versions asked for that really starts (a version manager may leave a command that does
# not); prints nothing and exits 1 where there is none.   Use: find_python.sh 3.11 3.12 3.13
for version in "$@"; do
  for python in "python$version" "$HOME"/.pyenv/versions/"$version"*/bin/python python3; do
    if "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" >/dev/null 2>&1; then
      echo "$python"
      exit 0
    fi
  done
done
exit 1
