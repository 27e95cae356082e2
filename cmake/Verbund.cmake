# Compiler settings and the two functions every CMakeLists.txt of the tree uses.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)  # the MLX module links the same static libraries
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG" CACHE STRING "" FORCE)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE}")
endif()

# -ffp-contract=off: a fused multiply-add is written where the exactness contract wants one and nowhere else
# (docs/DESIGN.md section 4.1). The base instruction set stays the platform's; kernels raise it themselves.
add_compile_options(-Wall -Wextra -Wpedantic -Wno-unused-parameter -ffp-contract=off)

set(VERBUND_SANITIZE "" CACHE STRING "Sanitizers of the whole build: address,undefined or thread")
if(VERBUND_SANITIZE)
  add_compile_options(-fsanitize=${VERBUND_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${VERBUND_SANITIZE})
endif()

# verbund_library(NAME [DEPS lib...] [LINK target...] [SOURCES file...])
# The library of src/NAME. Its headers are reached as "NAME/header.h" through a private include root that holds only
# this folder; DEPS pass theirs on. Without SOURCES all *.cpp of the folder are taken.
function(verbund_library name)
  cmake_parse_arguments(ARG "" "" "DEPS;LINK;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  endif()
  set(root "${CMAKE_BINARY_DIR}/include/${name}")
  file(MAKE_DIRECTORY "${root}")
  file(CREATE_LINK "${CMAKE_SOURCE_DIR}/src/${name}" "${root}/${name}" SYMBOLIC)
  add_library(verbund_${name} STATIC ${ARG_SOURCES})
  target_include_directories(verbund_${name} PUBLIC "${root}")
  list(TRANSFORM ARG_DEPS PREPEND verbund_)
  target_link_libraries(verbund_${name} PUBLIC ${ARG_DEPS} ${ARG_LINK})
endfunction()

# verbund_test(NAME [DEPS lib...] [LINK target...]): one GoogleTest program of tests/NAME/*_test.cpp.
function(verbund_test name)
  cmake_parse_arguments(ARG "" "" "DEPS;LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/${name}/*.cpp")
  if(NOT sources)
    return()
  endif()
  add_executable(test_${name} ${sources})
  list(TRANSFORM ARG_DEPS PREPEND verbund_)
  target_link_libraries(test_${name} PRIVATE ${ARG_DEPS} ${ARG_LINK} GTest::gmock GTest::gtest GTest::gtest_main)
  target_include_directories(test_${name} PRIVATE "${CMAKE_SOURCE_DIR}/tests")
  target_compile_definitions(test_${name} PRIVATE VERBUND_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data"
                             VERBUND_BUILD_DIR="${CMAKE_BINARY_DIR}")
  gtest_discover_tests(test_${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 120)
endfunction()
