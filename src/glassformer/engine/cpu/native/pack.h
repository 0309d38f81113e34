// From a file's packed rows to tiles of 16 rows, and from a tile back to the floats of one row.
//
// GGUF's blocks (https://github.com/ggml-org/ggml, ggml-common.h) hold neighbours of one row; a tile holds the same numbers
// of 16 rows side by side, as kernels.cpp reads them. No number changes, only its place.
#pragma once
#include <cmath>
#include <cstring>

#include "glass.h"

namespace glass {

inline float half_to_float(const uint8_t* p) {
    const uint32_t h = uint32_t(p[0]) | uint32_t(p[1]) << 8, rest = h & 0x7fff, sign = (h & 0x8000) << 16;
    float x;
    if (rest < 0x400) {
        x = float(rest) * 5.9604644775390625e-8f;
        return sign ? -x : x;
    }
    const uint32_t bits = sign | (rest >= 0x7c00 ? 0x7f800000 | (rest & 0x3ff) << 13 : (rest << 13) + (112u << 23));
    std::memcpy(&x, &bits, 4);
    return x;
}

enum FileKind : int32_t { FROM_Q4_0, FROM_Q4_1, FROM_Q5_0, FROM_Q8_0, FROM_Q4_K, FROM_Q5_K, FROM_Q6_K, FROM_MXFP4 };

struct FileBlock {
    int block, bytes;  // elements and bytes of a block
    int kind;          // of the matrix that is made of it
};

inline FileBlock file_block(int source) {
    switch (source) {
        case FROM_Q4_0: return {32, 18, Q4_0};
        case FROM_Q4_1: return {32, 20, Q4_1};
        case FROM_Q5_0: return {32, 22, Q8_0};  // its codes fit into eight bits as they are
        case FROM_Q8_0: return {32, 34, Q8_0};
        case FROM_Q4_K: return {256, 144, Q4_K};
        case FROM_Q5_K: return {256, 176, Q5_K};
        case FROM_Q6_K: return {256, 210, Q6_K};
        case FROM_MXFP4: return {32, 17, MXFP4};
    }
    return {0, 0, -1};
}

struct TileLayout {
    int head, inner;  // bytes in front of each 256 inputs, and for each 32
};

inline TileLayout tile_layout(int kind) {
    switch (kind) {
        case Q8_0: return {0, 544};
        case Q4_0: return {0, 288};
        case Q4_1: return {0, 320};
        case Q4_K: return {64, 288};
        case Q5_K: return {64, 352};
        case Q6_K: return {32, 416};
        case MXFP4: return {0, 320};
    }
    return {0, 0};
}

inline size_t tile_size(int kind, int columns) {
    const TileLayout t = tile_layout(kind);
    return size_t(columns / BLOCK) * t.inner + (t.head ? size_t(columns / SUPER) * t.head : 0);
}

// Half the power of two that a byte of eight exponent bits (E8M0) stands for: codes are doubled.
inline float half_of_e8m0(uint8_t exponent) {
    const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : uint32_t(exponent - 1) << 23;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

inline void scale_and_min_k4(const uint8_t* scales, int number, uint8_t* scale, uint8_t* minimum) {
    if (number < 4) {
        *scale = scales[number] & 63;
        *minimum = scales[number + 4] & 63;
    } else {
        *scale = uint8_t((scales[number + 4] & 15) | (scales[number - 4] >> 6) << 4);
        *minimum = uint8_t(scales[number + 4] >> 4 | (scales[number] >> 6) << 4);
    }
}

// The codes of 32 neighbours: part `part` of a file's block.
inline void unpack_codes(int source, const uint8_t* block, int part, uint8_t* codes) {
    for (int i = 0; i < BLOCK; ++i) {
        const int half = i % 16, upper = i / 16;
        switch (source) {
            case FROM_Q4_0: codes[i] = upper ? block[2 + half] >> 4 : block[2 + half] & 15; break;
            case FROM_Q4_1: codes[i] = upper ? block[4 + half] >> 4 : block[4 + half] & 15; break;
            case FROM_Q5_0: {
                const int low = upper ? block[6 + half] >> 4 : block[6 + half] & 15;
                const int fifth = block[2 + i / 8] >> (i % 8) & 1;
                codes[i] = uint8_t((low | fifth << 4) - 16);
                break;
            }
            case FROM_Q8_0: codes[i] = block[2 + i]; break;
            case FROM_MXFP4: codes[i] = upper ? block[1 + half] >> 4 : block[1 + half] & 15; break;
            case FROM_Q4_K: {
                const uint8_t two = block[16 + part / 2 * 32 + i];
                codes[i] = part % 2 ? two >> 4 : two & 15;
                break;
            }
            case FROM_Q5_K: {
                const uint8_t two = block[48 + part / 2 * 32 + i];
                codes[i] = uint8_t((part % 2 ? two >> 4 : two & 15) | (block[16 + i] >> part & 1) << 4);
                break;
            }
            default: {  // Q6_K: 128 elements share 64 bytes of low halves and 32 of upper bits
                const uint8_t* low = block + part / 4 * 64 + part % 2 * 32;
                const uint8_t* high = block + 128 + part / 4 * 32;
                const int two = part % 4;
                codes[i] = uint8_t((two / 2 ? low[i] >> 4 : low[i] & 15) | (high[i] >> (2 * two) & 3) << 4);
            }
        }
    }
}

// One row's codes of 32 inputs to their place in a tile's block.
inline void write_codes(int kind, const uint8_t* codes, int row, uint8_t* out) {
    for (int i = 0; i < BLOCK; ++i) {
        const int group = i / 4, at = row * 4 + i % 4;
        if (kind == Q8_0) {
            out[group * 64 + at] = codes[i];
            continue;
        }
        if (kind == Q6_K) {  // three groups below, the fourth in the upper bits of those
            uint8_t* three = out + group / 4 * 192 + at;
            if (group % 4 < 3) three[group % 4 * 64] |= codes[i];
            else
                for (int part = 0; part < 3; ++part) three[part * 64] |= uint8_t((codes[i] >> (2 * part) & 3) << 6);
            continue;
        }
        out[group / 2 * 64 + at] |= uint8_t((codes[i] & 15) << (group % 2 * 4));
        if (kind == Q5_K) out[256 + at] |= uint8_t((codes[i] >> 4) << group);
    }
}

inline void pack_block(int source, int kind, const uint8_t* block, int part, int row, uint8_t* outer, uint8_t* out) {
    uint8_t codes[BLOCK];
    unpack_codes(source, block, part, codes);
    switch (kind) {
        case Q8_0:
        case Q4_0:
            std::memcpy(out + 2 * row, block, 2);
            write_codes(kind, codes, row, out + 32);
            break;
        case MXFP4: {
            const float scale = half_of_e8m0(block[0]);
            std::memcpy(out + 4 * row, &scale, 4);
            write_codes(kind, codes, row, out + 64);
            break;
        }
        case Q4_1:
            std::memcpy(out + 2 * row, block, 2);
            std::memcpy(out + 32 + 2 * row, block + 2, 2);
            write_codes(kind, codes, row, out + 64);
            break;
        case Q4_K:
        case Q5_K:
            if (part == 0) {
                std::memcpy(outer + 2 * row, block, 2);
                outer[32 + 2 * row] = block[2];
                outer[32 + 2 * row + 1] = block[3] ^ 0x80;  // negated: it is subtracted
            }
            scale_and_min_k4(block + 4, part, out + row, out + 16 + row);
            write_codes(kind, codes, row, out + 32);
            break;
        default:
            if (part == 0) std::memcpy(outer + 2 * row, block + 208, 2);
            out[row] = block[192 + 2 * part];
            out[16 + row] = block[192 + 2 * part + 1];
            write_codes(kind, codes, row, out + 32);
    }
}

// Tiles [begin, end) of a matrix. `order`: for each row the file's row that holds it; null: the same.
inline void pack_tiles(int source, const uint8_t* file, int rows, int columns, const int32_t* order, int begin, int end,
                       uint8_t* out) {
    const FileBlock shape = file_block(source);
    const TileLayout t = tile_layout(shape.kind);
    const size_t row_bytes = size_t(columns / shape.block) * shape.bytes, size = tile_size(shape.kind, columns);
    for (int tile = begin; tile < end; ++tile) {
        uint8_t* start = out + size_t(tile) * size;
        std::memset(start, 0, size);
        for (int row = 0; row < TILE && tile * TILE + row < rows; ++row) {
            const int number = tile * TILE + row;
            const uint8_t* from = file + size_t(order ? order[number] : number) * row_bytes;
            uint8_t *at = start, *outer = start;
            for (int column = 0; column < columns; column += BLOCK, at += t.inner) {
                if (t.head && column % SUPER == 0) {
                    outer = at;
                    at += t.head;
                }
                const int part = column % shape.block / BLOCK;
                pack_block(source, shape.kind, from + size_t(column / shape.block) * shape.bytes, part, row, outer, at);
            }
        }
    }
}

// One row of a matrix as floats.
inline void dequantize_row(const Matrix& m, int number, float* out) {
    const size_t at = size_t(number) * m.columns;
    if (m.kind == F32) {
        std::memcpy(out, reinterpret_cast<const float*>(m.data) + at, size_t(m.columns) * 4);
        return;
    }
    if (m.kind == F16 || m.kind == BF16) {
        const uint8_t* p = m.data + 2 * at;
        for (int i = 0; i < m.columns; ++i, p += 2) {
            const uint32_t bits = (uint32_t(p[0]) | uint32_t(p[1]) << 8) << 16;
            if (m.kind == F16) out[i] = half_to_float(p);
            else std::memcpy(out + i, &bits, 4);
        }
        return;
    }
    const TileLayout t = tile_layout(m.kind);
    const int row = number % TILE;
    const uint8_t *tile = m.data + size_t(number / TILE) * tile_size(m.kind, m.columns), *outer = tile;
    for (int column = 0; column < m.columns; column += BLOCK, tile += t.inner, out += BLOCK) {
        if (t.head && column % SUPER == 0) {
            outer = tile;
            tile += t.head;
        }
        const uint8_t* codes = tile + (m.kind == Q4_1 || m.kind == MXFP4 ? 64 : 32) + row * 4;
        for (int i = 0; i < BLOCK; ++i) {
            const int group = i / 4, near = i % 4, half = i / 16;
            const int low = codes[group / 2 * 64 + near] >> (group % 2 * 4) & 15;
            switch (m.kind) {
                case Q8_0: out[i] = half_to_float(tile + 2 * row) * float(int8_t(codes[group * 64 + near])); break;
                case Q4_0: out[i] = half_to_float(tile + 2 * row) * float(low - 8); break;
                case MXFP4: {
                    float scale;
                    std::memcpy(&scale, tile + 4 * row, 4);
                    out[i] = scale * float(MXFP4_VALUES[low] - MXFP4_ZERO);
                    break;
                }
                case Q4_1: out[i] = half_to_float(tile + 2 * row) * float(low) + half_to_float(tile + 32 + 2 * row); break;
                case Q4_K:
                case Q5_K: {
                    const int code = m.kind == Q4_K ? low : low | (codes[256 + near] >> group & 1) << 4;
                    out[i] = half_to_float(outer + 2 * row) * float(tile[row]) * float(code) +
                             half_to_float(outer + 32 + 2 * row) * float(tile[16 + row]);
                    break;
                }
                default: {
                    const uint8_t* three = codes + group / 4 * 192 + near;
                    const int fourth = three[0] >> 6 | three[64] >> 6 << 2 | three[128] >> 6 << 4;
                    const int code = group % 4 < 3 ? three[group % 4 * 64] & 63 : fourth;
                    out[i] = half_to_float(outer + 2 * row) * float(int8_t(tile[16 * half + row])) * float(code - 32);
                }
            }
        }
    }
}

}  // namespace glass
