//! What tests of kernels need: the languages of Metal and DX12, without a device.

use naga::back::{hlsl, msl};
use naga::valid::{Capabilities, ValidationFlags, Validator};

use crate::wgsl::portable;

/// The text that a device gets; without subgroups where it has none.
pub fn portable(source: &str, subgroups: bool) -> String {
    match subgroups {
        true => source.to_owned(),
        false => portable::without_subgroups(source).into_owned(),
    }
}

/// Validates a text and writes it for Metal and for DX12; gives both.
///
/// # Errors
/// What is wrong with it, and for whom.
pub fn write(source: &str) -> Result<[String; 2], String> {
    let module =
        naga::front::wgsl::parse_str(source).map_err(|error| error.emit_to_string(source))?;
    let capabilities = Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::SUBGROUP
        | Capabilities::MEMORY_DECORATION_COHERENT;
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|error| error.emit_to_string(source))?;
    let options = msl::Options {
        // Subgroups came with 2.4, `coherent` with 3.2.
        lang_version: (3, 2),
        fake_missing_bindings: true,
        zero_initialize_workgroup_memory: false,
        ..msl::Options::default()
    };
    let (metal, _) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
        .map_err(|error| format!("MSL: {error}"))?;
    let options = hlsl::Options {
        // Packed dot products came with 6.4.
        shader_model: hlsl::ShaderModel::V6_4,
        fake_missing_bindings: true,
        zero_initialize_workgroup_memory: false,
        ..hlsl::Options::default()
    };
    let mut dx12 = String::new();
    let pipeline = hlsl::PipelineOptions::default();
    hlsl::Writer::new(&mut dx12, &options, &pipeline)
        .write(&module, &info, None)
        .map_err(|error| format!("HLSL: {error}"))?;
    Ok([metal, dx12])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_languages_are_written_and_what_has_none_is_refused() {
        let text = "@group(0) @binding(0) var<storage, read_write> b: array<u32>;
@compute @workgroup_size(8) fn main(@builtin(local_invocation_index) i: u32) { b[i] = subgroupAdd(i); }";
        let [metal, dx12] = write(text).unwrap();
        assert!(metal.contains("simd_sum") && dx12.contains("WaveActiveSum"), "{metal}\n{dx12}");
        assert!(write(&text.replace("b[i] = subgroupAdd(i)", "b[i] = nothing(i)")).is_err());
        let matrices = "enable wgpu_cooperative_matrix;\n@compute @workgroup_size(32) fn main() {}";
        let used = matrices.replace("{}", "{ var c = coop_mat16x16<f32, C>(); _ = c; }");
        assert!(write(&used).is_err(), "cooperative matrices are nobody's but Vulkan's");
    }
}
