// The kernel files, one per operator family.
#pragma once

#include <vector>

#include "support.h"

namespace ptn::kernels {

KernelList attention_kernels();
KernelList cast_kernels();
KernelList conv_kernels();
KernelList create_kernels();
KernelList elementwise_kernels();
KernelList index_kernels();
KernelList index_scatter_kernels();
KernelList layout_kernels();
KernelList matmul_kernels();
KernelList norm_kernels();
KernelList pool_kernels();
KernelList quant_kernels();
KernelList quant_product_kernels();
KernelList reduction_kernels();
KernelList reduction_scan_kernels();
KernelList resample_kernels();

KernelList sort_kernels();

inline std::vector<KernelList> family_lists() {
  return {attention_kernels(),     cast_kernels(),      conv_kernels(),          create_kernels(),
          elementwise_kernels(),   index_kernels(),     index_scatter_kernels(), layout_kernels(),
          matmul_kernels(),        norm_kernels(),      pool_kernels(),          quant_kernels(),
          quant_product_kernels(), reduction_kernels(), resample_kernels(),      reduction_scan_kernels(),
          sort_kernels()};
}

}  // namespace ptn::kernels
