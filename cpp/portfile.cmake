# With `vcpkg install nearcall --overlay-ports=cpp`, vcpkg builds the library from this directory.
vcpkg_check_features(OUT_FEATURE_OPTIONS without INVERTED_FEATURES
  gzip CMAKE_DISABLE_FIND_PACKAGE_ZLIB
  tls CMAKE_DISABLE_FIND_PACKAGE_OpenSSL)
vcpkg_cmake_configure(SOURCE_PATH ${CURRENT_PORT_DIR} OPTIONS -DNEARCALL_TESTS=OFF ${without})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/nearcall)
vcpkg_copy_tools(TOOL_NAMES protoc-gen-nearcall_cpp AUTO_CLEAN)
vcpkg_replace_string(${CURRENT_PACKAGES_DIR}/lib/pkgconfig/nearcall.pc /bin/ /tools/nearcall/)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/debug/include)
vcpkg_install_copyright(FILE_LIST ${CURRENT_PORT_DIR}/../LICENSE)
