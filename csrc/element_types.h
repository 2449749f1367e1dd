// The element types that C++ does not have. A file for one CPU instruction set must include what is not compiled for it
// (cpu/kernels.h) before ops.h; both take the list from here, so that they cannot differ.
#pragma once

#include <c10/macros/Macros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e4m3fnuz.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Float8_e5m2fnuz.h>
#include <c10/util/Half.h>
