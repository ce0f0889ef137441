//! tmp
/// t
pub struct ChatFormat; 
/// t
pub struct ChatMessage;
/// t
pub struct ChatOptions;
/// t
pub struct ChatTemplate;
/// t
pub struct Date;
