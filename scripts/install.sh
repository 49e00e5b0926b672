#!/bin/bash
# install.sh: put what $BUILD holds under $DESTDIR$PREFIX (make install). Builds nothing.
set -eu
: "${BUILD:?}" "${PREFIX:=/usr/local}" "${DESTDIR:=}" "${VERSION:=0.1.0}"
to=$DESTDIR$PREFIX

# pc NAME DESCRIPTION LIBRARIES...: what a program links, and what a static one links besides.
pc() {
    printf '%s\n' "prefix=$PREFIX" "includedir=\${prefix}/include" "libdir=\${prefix}/lib" "" \
        "Name: $1" "Description: $2" "Version: $VERSION" "Cflags: -I\${includedir}" "Libs: -L\${libdir} -l$1" \
        "Libs.private: ${*:3}" >"$to/lib/pkgconfig/$1.pc"
}

install -d "$to/bin" "$to/lib/pkgconfig" "$to/include" "$to/share/man/man1"
install "$BUILD/ballast" "$to/bin/"
install -m 644 "$BUILD"/libballast{,-trace,-plan}.{a,so} "$to/lib/"
install -m 644 include/*.h "$to/include/"
"$BUILD/ballast" help --man >"$to/share/man/man1/ballast.1"
pc ballast "hot rebalancing of Mixture-of-Experts layers inside an engine" \
    -lucp -lucs -ljansson -lxxhash -lzstd -lrt -lm -pthread
pc ballast-trace "routing traces of Mixture-of-Experts layers out of an engine" -lrt
pc ballast-plan "placements of experts for Mixture-of-Experts layers" \
    -lcsv -ljansson -lexpat -lzstd -lxxhash -lm -lrt
