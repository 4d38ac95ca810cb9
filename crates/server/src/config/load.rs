//! Reads the configuration and tells where each value came from.

use std::path::PathBuf;

use figment::error::{Error, Kind};
use figment::providers::{Env, Format as _, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use percale_core::ErrorCode;

use super::Config;
use crate::ApiError;

/// What every variable of the environment begins with.
const PREFIX: &str = "PERCALE__";

/// Where the configuration is read from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The TOML file. Without one there are only defaults, environment and flags.
    pub file: Option<PathBuf>,
    /// Settings from flags: place and value, such as `http.listen` and `0.0.0.0:443`.
    pub flags: Vec<(String, String)>,
}

/// A configuration that was read and is valid.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    figment: Figment,
}

/// One value of the effective configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its place, such as `http.listen`.
    pub key: String,
    /// Its value as it would stand in the file; a password is left out.
    pub value: String,
    /// Where it came from: `default`, the file's path, the variable's name, or the flag.
    pub origin: String,
}

impl Sources {
    /// Reads and checks the configuration.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidConfiguration`], naming the place, and for an unknown key the one that may have been meant.
    pub fn load(&self) -> Result<Loaded, ApiError> {
        let mut figment = Figment::from(Layer { name: "default", values: Ok(as_dict(&Config::default())) });
        if let Some(file) = &self.file {
            if let Err(error) = std::fs::File::open(file) {
                return Err(invalid(format!(
                    "cannot read the configuration file {}: {error}",
                    file.display()
                )));
            }
            figment = figment.merge(Toml::file_exact(file));
        }
        figment = figment.merge(Env::prefixed(PREFIX).split("__"));
        figment = figment.merge(Layer { name: "flag", values: flags(&self.flags) });
        let config: Config = figment.extract().map_err(|error| invalid(describe(error)))?;
        config.validate()?;
        Ok(Loaded { config, figment })
    }
}

impl Loaded {
    /// Returns every value with its origin, in the order of the places.
    pub fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        flatten("", &Value::from(as_dict(&self.config)), &mut |key, value| {
            let origin =
                self.figment.find_metadata(key).map_or("default".into(), |source| origin(source, key));
            settings.push(Setting { key: key.to_owned(), value: redact(key, value), origin });
        });
        settings
    }
}

fn invalid(detail: String) -> ApiError {
    ApiError::new(ErrorCode::InvalidConfiguration, detail)
}

/// One source of values, by a name that people recognise.
struct Layer {
    name: &'static str,
    values: Result<Dict, String>,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        let values = self.values.clone().map_err(Error::from)?;
        Ok(Map::from([(Profile::Default, values)]))
    }
}

fn as_dict(config: &Config) -> Dict {
    let value = Value::serialize(config).expect("a structure of texts and numbers can be serialized");
    value.into_dict().expect("a structure is a dictionary")
}

fn flags(flags: &[(String, String)]) -> Result<Dict, String> {
    let mut all = Dict::new();
    for (key, text) in flags {
        let Ok(value) = text.parse::<Value>();
        insert(&mut all, key, value).map_err(|()| format!("the flag '{key}' names no setting"))?;
    }
    Ok(all)
}

fn insert(dict: &mut Dict, key: &str, value: Value) -> Result<(), ()> {
    let Some((section, rest)) = key.split_once('.') else {
        dict.insert(key.to_owned(), value);
        return Ok(());
    };
    let inner = dict.entry(section.to_owned()).or_insert_with(|| Value::from(Dict::new()));
    match inner {
        Value::Dict(_, inner) => insert(inner, rest, value),
        _ => Err(()),
    }
}

fn flatten(prefix: &str, value: &Value, found: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Dict(_, dict) => {
            for (key, value) in dict {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&key, value, found);
            }
        }
        value => found(prefix, value),
    }
}

fn redact(key: &str, value: &Value) -> String {
    match value {
        Value::String(_, text) if key == "catalog.url" => format!("{:?}", without_password(text)),
        Value::String(_, text) => format!("{text:?}"),
        Value::Empty(..) => "(not set)".to_owned(),
        value => serde_json::to_string(value).unwrap_or_default(),
    }
}

/// Leaves the password out of `scheme://user:password@host`.
fn without_password(url: &str) -> String {
    let parts = url.split_once("://").and_then(|(scheme, rest)| {
        let (user, host) = rest.rsplit_once('@')?;
        let (user, _) = user.split_once(':')?;
        Some(format!("{scheme}://{user}:<redacted>@{host}"))
    });
    parts.unwrap_or_else(|| url.to_owned())
}

fn origin(source: &Metadata, key: &str) -> String {
    match source.source.as_ref().and_then(|source| source.file_path()) {
        Some(path) => path.display().to_string(),
        None if source.name.contains("environment") => variable(key),
        None => source.name.to_string(),
    }
}

fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase().replace('.', "__"))
}

fn describe(error: Error) -> String {
    let Some(error) = error.into_iter().next() else {
        return "cannot use the configuration".to_owned();
    };
    let key = error.path.join(".");
    let place =
        error.metadata.as_ref().map_or(String::new(), |source| format!(" ({})", origin(source, &key)));
    match &error.kind {
        Kind::UnknownField(field, known) => {
            let section =
                error.path.split_last().map_or("", |(_, above)| above.first().map_or("", String::as_str));
            // Figment names the unknown field itself as the last part of the path for some sources and not for others.
            let section = match section {
                "" if error.path.first().is_some_and(|first| first != field) => error.path[0].as_str(),
                other => other,
            };
            let name = if section.is_empty() { field.clone() } else { format!("{section}.{field}") };
            let hint = match nearest(field, known) {
                Some(known) => format!("; did you mean '{known}'?"),
                None => format!("; known are {}", known.join(", ")),
            };
            format!("unknown setting '{name}'{place}{hint}")
        }
        kind => format!("cannot use the value of '{key}'{place}: {kind}"),
    }
}

fn nearest<'a>(field: &str, known: &[&'a str]) -> Option<&'a str> {
    let best = known.iter().map(|known| (strsim::damerau_levenshtein(field, known), *known)).min()?;
    (best.0 <= 1 + field.len() / 3).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_file(text: &str) -> Result<Loaded, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("percale.toml");
        std::fs::write(&file, text).unwrap();
        Sources { file: Some(file), flags: Vec::new() }.load().map_err(|error| error.to_string())
    }

    fn with_flags(flags: &[(&str, &str)]) -> Result<Loaded, String> {
        let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Sources { file: None, flags }.load().map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_serve_one_site() {
        let loaded = with_flags(&[]).unwrap();
        assert_eq!(loaded.config.http.listen.to_string(), "127.0.0.1:8787");
        assert!(loaded.config.catalog_url().unwrap().ends_with("/catalog.db"));
        assert!(
            loaded.settings().iter().all(|setting| setting.origin == "default"),
            "{:?}",
            loaded.settings()
        );
    }

    #[test]
    fn a_value_goes_over_those_before_it_and_says_where_it_came_from() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("percale.toml");
        std::fs::write(
            &file,
            "[site]\nname = 'alps'\n[http]\nlisten = '127.0.0.1:1'\nheader_timeout = '5s'\n",
        )
        .unwrap();
        let flags = vec![("http.listen".to_owned(), "127.0.0.1:2".to_owned())];
        let loaded = Sources { file: Some(file.clone()), flags }.load().unwrap();
        assert_eq!(loaded.config.http.listen.port(), 2);
        assert_eq!(loaded.config.http.header_timeout.as_secs(), 5);
        let origin = |key: &str| loaded.settings().into_iter().find(|s| s.key == key).unwrap().origin;
        assert_eq!(origin("http.listen"), "flag");
        assert_eq!(origin("site.name"), file.display().to_string());
        assert_eq!(origin("tls.mode"), "default");
    }

    #[test]
    fn unknown_keys_are_refused_with_a_suggestion() {
        let error = from_file("[http]\nlisen = '127.0.0.1:1'\n").unwrap_err();
        assert!(
            error.contains("unknown setting 'http.lisen'") && error.contains("did you mean 'listen'?"),
            "{error}"
        );
        assert!(error.contains("percale.toml"), "{error}");
        let error = from_file("[htp]\nlisten = '127.0.0.1:1'\n").unwrap_err();
        assert!(error.contains("unknown setting 'htp'") && error.contains("did you mean 'http'?"), "{error}");
        let error = with_flags(&[("tls.mod", "off")]).unwrap_err();
        assert!(error.contains("did you mean 'mode'?"), "{error}");
    }

    #[test]
    fn values_that_cannot_be_are_named() {
        let error = from_file("[http]\nlisten = 'here'\n").unwrap_err();
        assert!(error.contains("'http.listen'"), "{error}");
        let error = with_flags(&[("tls.mode", "off"), ("http.listen", "0.0.0.0:80"), ("site.name", "A b")])
            .unwrap_err();
        assert!(error.contains("loopback") && error.contains("site.name"), "all faults at once: {error}");
        let error =
            Sources { file: Some("/does/not/exist".into()), flags: vec![] }.load().unwrap_err().to_string();
        assert!(error.contains("/does/not/exist"), "{error}");
    }

    #[test]
    fn sites_that_integrity_only_was_agreed_with_are_other_sites() {
        let loaded = from_file("[federation]\nintegrity_only = ['baltic']\n").unwrap();
        assert_eq!(loaded.config.federation.integrity_only, ["baltic"]);
        for name in ["alps", "", "https://baltic.example.org"] {
            let text = format!("[site]\nname = 'alps'\n[federation]\nintegrity_only = ['{name}']\n");
            let error = from_file(&text).unwrap_err();
            assert!(error.contains(&format!("integrity_only has '{name}'")), "{error}");
        }
    }

    #[test]
    fn limits_by_time_of_day_are_read_and_shown() {
        let text = "[transfers]\nlimit = '1Gbit/s'\n\
            times = [{ from = '08:00', to = '18:00', days = 'mon-fri', limit = '60MB/s' }]\n";
        let loaded = from_file(text).unwrap();
        let transfers = &loaded.config.transfers;
        assert_eq!(transfers.limit.unwrap().to_string(), "1Gbit/s");
        assert_eq!(transfers.times[0].limit.to_string(), "480Mbit/s");
        let shown = loaded.settings().into_iter().find(|s| s.key == "transfers.times").unwrap().value;
        assert!(shown.contains("480Mbit/s") && shown.contains("18:00"), "{shown}");
        for (text, place, why) in [
            ("limit = 'fast'", "transfers.limit", "200Mbit/s"),
            ("limit = '1kB/s'", "transfers.limit", "between 1Mbit/s"),
            ("per_source = 0", "transfers.per_source", "is 0"),
            ("times = [{ from = '8', to = '18:00', limit = '1MB/s' }]", "transfers.times", "time of day"),
            ("times = [{ from = '08:00', to = '18:00', days = 'x', limit = '1MB/s' }]", "times", "mon-fri"),
            ("times = [{ from = '08:00', to = '18:00' }]", "transfers.times", "limit"),
            (
                "times = [{ from = '08:00', to = '18:00', limit = '1MB/s', zone = 'x' }]",
                "transfers.zone",
                "known are from",
            ),
        ] {
            let error = from_file(&format!("[transfers]\n{text}\n")).unwrap_err();
            assert!(error.contains(place) && error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_url_with_a_password_is_read_from_a_file_of_its_owners() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("url");
        std::fs::write(&file, "postgres://percale:s3cret@db/percale\n").unwrap();
        let set_mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o600);
        let loaded = with_flags(&[("catalog.url_file", file.to_str().unwrap())]).unwrap();
        assert_eq!(loaded.config.catalog_url().unwrap(), "postgres://percale:s3cret@db/percale");
        set_mode(0o640);
        assert!(loaded.config.catalog_url().unwrap_err().to_string().contains("0640"));
    }

    #[test]
    fn a_password_is_not_shown() {
        let loaded = with_flags(&[("catalog.url", "postgres://percale:s3cret@db/percale")]).unwrap();
        let shown = loaded.settings().into_iter().find(|s| s.key == "catalog.url").unwrap().value;
        assert_eq!(shown, r#""postgres://percale:<redacted>@db/percale""#);
    }
}
